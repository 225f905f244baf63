"""Sphinx's part of the generated pages: directives, and the schema as a file."""

from __future__ import annotations

import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import command_reference
import record_schema
import subject_tables

SCHEMA_FILE = "record.schema.json"


class Commands(SphinxDirective):
    """The reference of all commands, in place."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(command_reference.markdown(), allow_section_headings=True)


class RecordSchema(SphinxDirective):
    """The tables of the record, in place."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(record_schema.markdown(), allow_section_headings=True)


class SubjectTables(SphinxDirective):
    """The tables of a `kvtrail.toml`, in place."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(subject_tables.markdown(), allow_section_headings=True)


class Presets(SphinxDirective):
    """The metrics of a client's presets, in place."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(subject_tables.presets_markdown())


def write_schema(app: Sphinx, failure: Exception | None) -> None:
    """Offer the schema as a file of the site."""
    if failure is None and app.builder.format == "html":
        text = json.dumps(record_schema.schema(), indent=2)
        (Path(app.outdir) / SCHEMA_FILE).write_text(f"{text}\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directives and of the file."""
    app.add_directive("commands", Commands)
    app.add_directive("record-schema", RecordSchema)
    app.add_directive("subject-tables", SubjectTables)
    app.add_directive("presets", Presets)
    app.connect("build-finished", write_schema)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
