"""Switch the context of coverage for each of 400 tests of one file each, and print milliseconds."""

import tempfile
import time
from pathlib import Path

import coverage

with tempfile.TemporaryDirectory() as folder:
    functions = []
    for number in range(40):
        path = Path(folder, f"module{number}.py")
        path.write_text("def work():\n    return [n for n in range(3)]\n")
        names = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        functions.append(names["work"])
    measured = coverage.Coverage(data_file=None, source=[folder], config_file=False)
    begun = time.process_time()
    measured.start()
    for test in range(400):
        measured.switch_context(f"test{test}")
        functions[test % 40]()
    measured.stop()
    print("contexts took", 1e3 * (time.process_time() - begun))
