"""Check a schema of objects in an object against its metaschema: the least milliseconds."""

import time

from jsonschema import Draft202012Validator

schema = {"type": "string"}
for _ in range(2):
    schema = {"type": "object", "properties": dict.fromkeys("abc", schema)}


def once() -> float:
    begun = time.process_time()
    Draft202012Validator.check_schema(schema)
    return 1e3 * (time.process_time() - begun)


taken = [once()]
while sum(taken) < 100:
    taken.append(once())
print("check took", min(taken))
