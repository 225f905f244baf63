"""The step loop, and what launches the model's work on the device."""
