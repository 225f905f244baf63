"""The step loop: who has the turn, what is launched, and to whom tokens go."""
