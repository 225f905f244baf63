"""The named workloads, their prompts, and what drives them through an engine."""
