"""Wakes RATE times a second for SECONDS, and does nothing: `RATE SECONDS`. Prints its share of a core as JSON."""

import json
import sys
import time


def main() -> None:
    """Wake and sleep again until the time is over."""
    period_s, seconds = 1 / max(0.1, float(sys.argv[1])), float(sys.argv[2])
    began_s = next_s = time.perf_counter()
    cpu_s = time.process_time()
    while (now_s := time.perf_counter()) < began_s + seconds:
        next_s = max(next_s + period_s, now_s)
        time.sleep(next_s - now_s)
    print(json.dumps({"cpu_percent": 100 * (time.process_time() - cpu_s) / (time.perf_counter() - began_s)}))


if __name__ == "__main__":
    main()
