"""What every measuring verb can do: the same options, by the same names."""

from __future__ import annotations

import pytest
from typer.main import get_command

from asv_bench.cli.commands import build_app

COMPARING = ("compare", "bisect", "fixed", "swap", "changes")
OTHERS = ("history", "peers", "calibrate")
ABILITIES = {
    "--resume": (*COMPARING, *OTHERS),
    "--fresh": (*COMPARING, *OTHERS),
    "--minutes": (*COMPARING, *OTHERS),
    "--require-quiet": (*COMPARING, *OTHERS),
    "--json": (*COMPARING, *OTHERS),
    "--markdown": (*COMPARING, *OTHERS),
    "--margin": (*COMPARING, "calibrate"),
    "--anyway": (*COMPARING, "history", "calibrate"),
    # What is planted in a life is known only when the first has run, after hosts were told.
    "--fleet": (*COMPARING, "history", "peers"),
    "--kind": (*COMPARING, "history", "peers"),
    # swap needs labels, and changes judges what is stored; peers take several workloads.
    "--workload": ("compare", "bisect", "fixed", "history", "calibrate"),
    "--subject": (*COMPARING, "history", "calibrate"),
}


def options_of(verb: str) -> set[str]:
    command = get_command(build_app(verb))
    own = command.commands[verb] if hasattr(command, "commands") else command
    return {name for one in own.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("verb", [*COMPARING, *OTHERS])
def test_a_verb_can_what_the_others_can(verb: str) -> None:
    has = options_of(verb)
    assert {name for name in ABILITIES if name in has} == {
        name for name, verbs in ABILITIES.items() if verb in verbs
    }
