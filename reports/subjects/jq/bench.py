"""One life: jq makes letters small in 2,000 lines of a text; the CPU time that it takes."""

import os
import resource
import subprocess

FILTER = '[range(2000) | "The Quick Brown Fox Jumps Over \\(.) Lazy Dogs" | ascii_downcase | length] | add'
jq = os.path.join(os.environ["KVTRAIL_OUT"], "jq")
said = subprocess.run([jq, "-n", FILTER], stdout=subprocess.PIPE, text=True, check=True).stdout
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"the sum is {said.strip()}, and took {1e3 * (used.ru_utime + used.ru_stime):.2f} ms")
