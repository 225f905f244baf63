"""Runs of an engine to their ends, for the tests of its public face."""

from __future__ import annotations

from engine import Engine, SamplingParams, TokenEvent

GREEDY = SamplingParams(max_new_tokens=20, ignore_eos=True)
"""As in the fixture `greedy_alone`."""


def tokens_of(
    engine: Engine, prompts: list[list[int]], params: SamplingParams = GREEDY
) -> list[list[int]]:
    """What `generate` makes of the prompts."""
    return [completion.token_ids for completion in engine.generate(prompts, params)]


def run_to_end(engine: Engine) -> list[TokenEvent]:
    """The events of all steps that are left; bookkeeping is sound after each."""
    events: list[TokenEvent] = []
    while engine.has_unfinished:
        events += engine.step()
        engine.check_integrity()
    return events
