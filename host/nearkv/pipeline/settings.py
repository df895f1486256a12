"""What a pipeline is told: the method, the share that is selected, formats, link cap, lookahead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nearkv.pipeline.beta import require_fraction

LEAST_LINK_CAP = 0.001  # below, a time divided by it need not be a number any more


class Method(Enum):
    """How a decode step finds and fetches the rows it attends."""

    NEAR_DATA = "near_data"  # HillInfer: the CPU scores the hot pool, the card the cold one
    HOST_SCORING = "host_scoring"  # no card: key codes of the cold pool go to the host, whose CPU scores all
    FULL = "full"  # all rows go to the GPU, nothing is selected: KV offloading
    RECENCY = "recency"  # the newest tokens of the hot pool, nothing is scored


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Settings of one pipeline.

    Attributes:
        method: see `Method`.
        select_fraction: α, share of the tokens that is attended, above 0, to 1; without effect in FULL.
        code_bits: width of the key codes that the card scores, 8 or 4.
        link_cap: share of every link's time that KV traffic may take, 0.001 to 1.
        lookahead_layers: a layer is scored with a query predicted from the input of the layer so many before
            it (never with its own); 0 waits for the layer's own query.
        late_fraction: share of the selected rows that the prediction missed and that are fetched after the
            layer's own query is known; 0 attends the predicted selection as it is, at a cost in quality.
        hot_hit_fraction: share of the selected rows that lie in the hot pool; None for a selection without
            locality: the hot pool's share of the KV cache.
        joint_selection: the best of both pools together are selected, so that both must be scored before
            anything is fetched; False selects α of each pool by itself, as HillInfer's formula of β assumes.
        per_head_selection: rows are selected per KV head (pieces of one head's key and value row) instead of
            per layer (pieces of all heads' rows, which lie together).

    Where no score selects, lookahead_layers, code_bits, joint_selection and per_head_selection say nothing.

    ValueError for a value out of range, a late_fraction where nothing is predicted near the data, or a
    hot_hit_fraction where no score selects.

    """

    method: Method = Method.NEAR_DATA
    select_fraction: float = 0.10
    code_bits: int = 8
    link_cap: float = 1.0
    lookahead_layers: int = 1
    late_fraction: float = 0.0
    hot_hit_fraction: float | None = None
    joint_selection: bool = False
    per_head_selection: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        require_fraction("select_fraction", self.select_fraction)
        if not LEAST_LINK_CAP <= self.link_cap <= 1:
            raise ValueError(f"link_cap is {self.link_cap!r}; allowed: {LEAST_LINK_CAP} to 1")
        if self.code_bits not in (4, 8):
            raise ValueError(f"code_bits is {self.code_bits!r}; allowed: 4 or 8")
        if self.lookahead_layers < 0:
            raise ValueError(f"lookahead_layers is {self.lookahead_layers!r}; allowed: from 0")
        for name in ("late_fraction", "hot_hit_fraction"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} is {value!r}; allowed: 0 to 1")
        if self.late_fraction and (self.method is not Method.NEAR_DATA or not self.lookahead_layers):
            raise ValueError(
                f"late_fraction is {self.late_fraction}; allowed with {self.method.value} and"
                f" lookahead_layers {self.lookahead_layers}: 0, nothing is predicted near the data"
            )
        if self.hot_hit_fraction is not None and not self.selects:
            raise ValueError(
                f"hot_hit_fraction is {self.hot_hit_fraction}; allowed with {self.method.value}: none, no"
                " score selects"
            )

    @property
    def selects(self) -> bool:
        """Whether scores select what is fetched."""
        return self.method in (Method.NEAR_DATA, Method.HOST_SCORING)
