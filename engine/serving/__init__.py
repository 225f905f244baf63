"""The engine behind HTTP, in the shape of OpenAI's: `python -m engine.serving MODEL`.

A request's way: `app` reads and checks it (`bodies`), the `AsyncEngine` takes it in its thread,
and `answers` turns events into one reply or into a stream of them. The event loop never waits for
a step.
"""
