"""Tells many stories, on all cores; apart from `__main__`, which no worker process can import."""

import asyncio
import logging
import multiprocessing
import os
from collections.abc import Iterable, Iterator

import structlog

from kills.story import Outcome, tell


def tell_one(seed: int) -> Outcome:
    """Tell the story of *seed* without the daemon's log."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return asyncio.run(tell(seed))


def tell_all(seeds: Iterable[int]) -> Iterator[Outcome]:
    """Tell the stories of *seeds*, and yield their outcomes in order."""
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        yield from pool.imap(tell_one, seeds, chunksize=10)
