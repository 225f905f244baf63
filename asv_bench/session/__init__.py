"""What every verb that judges does: its options, its session, its exit code."""
