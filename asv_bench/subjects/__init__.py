"""What is measured, as the ruler sees it."""
