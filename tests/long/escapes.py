"""Random functions that take plain numbers out of recorded values: refused, or with the slope of differences.

python -m tests.long.escapes                    100 seconds
python -m tests.long.escapes --start 5000 --seconds 30
"""

import collections
import contextlib
import io

from tests.long.seeds import hunt
from tests.support.random.escapes import check, write


def main(argv=None):
    found = collections.Counter()

    def one(seed):
        source = write(seed)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found[check(source)] += 1
        except Exception as error:
            return source, f"{type(error).__name__}: {error}"
        return source, None

    seeds, wrong = hunt(__doc__.split("\n")[0], argv, one)
    print(f"{seeds} programs ({found['right']} right, {found['refused']} refused): {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
