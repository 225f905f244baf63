"""Pure Python work of about 100 ms of CPU time, all of which is `AMOUNT` times the same step."""

AMOUNT = 1000


def step() -> int:
    """Count words, sort them, and join them again."""
    counts: dict[str, int] = {}
    for number in range(400):
        word = f"word{number * 7919 % 97}"
        counts[word] = counts.get(word, 0) + len(word)
    return len(" ".join(sorted(counts, key=lambda word: (counts[word], word))))


print(sum(step() for _ in range(AMOUNT)))
