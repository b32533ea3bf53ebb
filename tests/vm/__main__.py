"""`python -m vm [PATTERN]`: runs the cases whose name contains PATTERN and prints what they saw."""

import sys
from collections import Counter, defaultdict

from vm.catalogue import selected
from vm.session import FAILED, PASSED, SKIPPED, run_cases


def main(pattern: str) -> int:
    cases = selected(pattern)
    if not cases:
        print(f"vm: no case has {pattern!r} in its name")
        return 2
    verdicts: Counter[str] = Counter()
    endings: defaultdict[str, dict[str, str]] = defaultdict(dict)

    for outcome in run_cases(cases, tell=lambda words: print(f"vm: {words}", flush=True)):
        verdicts[outcome.verdict] += 1
        for subject, findings in outcome.findings.items():
            endings[subject].update(findings)
        print(outcome, flush=True)
    skipped = f", {verdicts[SKIPPED]} skipped" if verdicts[SKIPPED] else ""
    print(f"vm: {verdicts[PASSED]} passed, {verdicts[FAILED]} failed{skipped}")
    for subject, findings in endings.items():
        print(f"{subject}: " + " ".join(f"{name}={found}" for name, found in findings.items()))
    return 1 if verdicts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
