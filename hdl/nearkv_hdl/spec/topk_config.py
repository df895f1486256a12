"""`TopKConfig`: one frozen description of a top-k unit, shared by RTL and golden model (no Amaranth here)."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_hdl.spec.formats import SCORE, TOKEN_INDEX, Format, is_power_of_two

JOB_K_BITS = 32  # wider than any count, so that a k beyond the capacity is clipped and never truncated
MAX_LANES = 8
MEMORY_STYLES = ("auto", "block", "ultra", "distributed")  # of nearkv_hdl.memory.SyncMemory


@dataclass(frozen=True)
class TopKConfig:
    """Parameters of a top-k unit.

    A score is resolved in three digits of at most `digit_bits`: the first while scores arrive, the second
    and third in passes over the score memory.

    Args:
        capacity: most scores of a job, a multiple of lanes and of token_run, from 2·lanes.
        lanes: scores that a pass reads per cycle (the w of the cycle bounds), a power of two from 1 to 8.
        score_bits: width of a score, signed; 3 to 3·digit_bits.
        digit_bits: log2 of the buckets of a histogram.
        scan_columns: buckets that a scan reads per cycle, a power of two below the number of buckets.
        candidate_rows: undecided scores that a lane keeps between the second and the third digit, from 2;
            with more, the third digit reads the score memory again.
        token_bits: width of a token index, 1 to 32.
        token_run: consecutive tokens that share one stored index, a power of two: position p of a job holds
            the token of position p - p % token_run, plus p % token_run. 1 allows any ascending tokens and
            stores one index per score; 128 (a key block) needs 1/128 of the memory.
        memory_style: style of the score memory, see `nearkv_hdl.memory.SyncMemory`.

    Raises ValueError that quotes the value and says what is allowed.

    """

    capacity: int
    lanes: int
    score_bits: int = SCORE.width
    digit_bits: int = 11
    scan_columns: int = 4
    candidate_rows: int = 512
    token_bits: int = TOKEN_INDEX.width
    token_run: int = 1
    memory_style: str = "auto"

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not (is_power_of_two(self.lanes) and self.lanes <= MAX_LANES):
            raise ValueError(f"lanes is {self.lanes}; allowed: a power of two from 1 to {MAX_LANES}")
        if not is_power_of_two(self.token_run):
            raise ValueError(f"token_run is {self.token_run}; allowed: a power of two from 1")
        step = max(self.lanes, self.token_run)
        if self.capacity < 2 * step or self.capacity % step:
            raise ValueError(
                f"capacity is {self.capacity}; allowed: a multiple of {step} from {2 * step}, with"
                f" {self.lanes} lanes and token_run {self.token_run}"
            )
        if self.digit_bits < 1:
            raise ValueError(f"digit_bits is {self.digit_bits}; allowed: from 1")
        if not max(3, self.digit_bits + 1) <= self.score_bits <= 3 * self.digit_bits:
            raise ValueError(
                f"score_bits is {self.score_bits}; allowed: {max(3, self.digit_bits + 1)} to"
                f" {3 * self.digit_bits} with digit_bits {self.digit_bits}, since a score has three digits"
            )
        if not (is_power_of_two(self.scan_columns) and self.scan_columns < self.buckets):
            raise ValueError(
                f"scan_columns is {self.scan_columns}; allowed: a power of two below {self.buckets}"
            )
        if not 2 <= self.candidate_rows <= self.rows:
            raise ValueError(
                f"candidate_rows is {self.candidate_rows}; allowed: 2 to {self.rows}, the scores of a lane"
            )
        if not 1 <= self.token_bits <= TOKEN_INDEX.width:
            raise ValueError(f"token_bits is {self.token_bits}; allowed: 1 to {TOKEN_INDEX.width}")
        if self.memory_style not in MEMORY_STYLES:
            raise ValueError(f"memory_style is {self.memory_style!r}; allowed: {', '.join(MEMORY_STYLES)}")

    @property
    def score(self) -> Format:
        """Format of a score."""
        return Format(self.score_bits, signed=True)

    @property
    def rows(self) -> int:
        """Rows of the score memory, `lanes` scores each."""
        return self.capacity // self.lanes

    @property
    def count_bits(self) -> int:
        """Width of a number of scores, 0 to capacity."""
        return self.capacity.bit_length()

    @property
    def buckets(self) -> int:
        """Buckets of a histogram."""
        return 1 << self.digit_bits

    @property
    def scan_rows(self) -> int:
        """Rows of a histogram bank, `scan_columns` buckets each."""
        return self.buckets // self.scan_columns

    @property
    def residual_bits(self) -> int:
        """Bits below the first digit of the full range; also the largest window_shift."""
        return self.score_bits - self.digit_bits

    @property
    def shift_bits(self) -> int:
        """Width of the job's window_shift."""
        return self.residual_bits.bit_length()

    @property
    def token_rows(self) -> int:
        """Stored token indices."""
        return self.capacity // self.token_run

    def window(self, low: int, high: int) -> tuple[int, int]:
        """(window_base, window_shift) of the narrowest window whose inner buckets cover [low, high].

        Raises ValueError unless min <= low <= high <= max.
        """
        if not self.score.min <= low <= high <= self.score.max:
            raise ValueError(
                f"window is {low} to {high}; allowed: ascending, {self.score.min} to {self.score.max}"
            )
        inner = self.buckets - 2  # the outer two also hold everything outside
        shift = next(
            (s for s in range(self.residual_bits) if (high - low) >> s < inner),
            self.residual_bits,
        )
        return max(low - (1 << shift), self.score.min), shift


# Units of the named designs. Key blocks are streamed whole, so one index per block of 128 is enough there.
TOPK_DESIGNS: dict[str, TopKConfig] = {
    "tiny": TopKConfig(capacity=1024, lanes=2, candidate_rows=32),
    "ulx3s_85f": TopKConfig(capacity=8192, lanes=2, token_run=128, candidate_rows=256),
    "ecp5_5g_85f": TopKConfig(capacity=16_384, lanes=2, token_run=128),
    "smartssd_ku15p": TopKConfig(capacity=65_536, lanes=4, token_run=128, memory_style="ultra"),
    "native_pcie": TopKConfig(capacity=65_536, lanes=4, token_run=128, memory_style="ultra"),
    "alveo_u50": TopKConfig(capacity=65_536, lanes=4, token_run=128, memory_style="ultra"),
}
