"""The ruler: workloads, measurements and verdicts for kvtrail's engine.

It is never part of the wheel, and touches the engine only through its public face.
"""
