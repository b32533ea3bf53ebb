"""`python -m kills [--stories N] [--seed S]`: random stories, and how many signals were wrong."""

import argparse
import sys

from kills.runner import tell_all, tell_one


def main() -> int:
    """Run, print, and return 1 when a signal hit somebody's work, or none hit an orphan."""
    parser = argparse.ArgumentParser(prog="kills", description=__doc__)
    parser.add_argument("--stories", type=int, default=1000, help="how many, from seed 0 on")
    parser.add_argument("--seed", type=int, help="tell this one story, line by line")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = tell_one(options.seed)
        print(*outcome.told, sep="\n")
        return _close(stories=1, ended=outcome.ended, wrong=len(outcome.wrong))
    stories = ended = wrong = 0
    for outcome in tell_all(range(options.stories)):
        if outcome.wrong and not wrong:
            print(f"kills: the story of seed {outcome.seed}:", *outcome.told, sep="\n")
        for each in outcome.wrong:
            print(f"kills: wrong (replay it with SEED={outcome.seed}): {each}", flush=True)
        stories, ended, wrong = stories + 1, ended + outcome.ended, wrong + len(outcome.wrong)
        if stories % 1000 == 0 and stories < options.stories:
            print(f"kills: {stories} stories so far, ended={ended} wrong={wrong}", flush=True)
    if not ended:
        print("kills: no orphan was ended, so nothing is proved")
    return _close(stories=stories, ended=ended, wrong=wrong) or int(not ended)


def _close(*, stories: int, ended: int, wrong: int) -> int:
    print(f"kills: stories={stories} ended={ended} wrong={wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
