"""What `jetspec eval` has to say: raw rows, the table by domain, and where the time of a round goes."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from .compare import Answer, decode_cost, tau
from .round_stats import STAGES

ALL = "all"


@dataclass(frozen=True)
class Configuration:
    """One way to decode; the four fields that name it in every output."""

    drafter: str
    expansion: str
    scoring: str
    budget: int

    @property
    def name(self) -> str:
        return "plain" if self == PLAIN else f"{self.expansion} {self.budget}"


PLAIN = Configuration("none", "none", "none", 1)


@dataclass(frozen=True)
class Measurement:
    """One answer of one configuration, given while `block` and plain decoding were compared."""

    block: Configuration
    configuration: Configuration
    domain: str
    prompt: int
    turn: int
    answer: Answer
    identical: bool  # to the plain answer, token for token

    def row(self) -> dict[str, Any]:
        """What `--jsonl` writes; every published number can be computed again from these."""
        answer = self.answer
        return {
            **asdict(self.configuration),
            "block": self.block.name,
            "domain": self.domain,
            "prompt": self.prompt,
            "turn": self.turn,
            "completion_tokens": len(answer.token_ids),
            "decoded_tokens": answer.decoded,
            "prefill_seconds": answer.prefill_seconds,
            "decode_seconds": answer.decode_seconds,
            "rounds": answer.rounds,
            "accepted_drafts": answer.accepted_drafts,
            "identical": self.identical,
        }


def summarise(measured: list[Measurement]) -> list[dict[str, Any]]:
    """A row for each configuration and domain, and one over all domains. Speed-ups are within a block."""
    order = list(dict.fromkeys([PLAIN, *(m.block for m in measured)]))
    domains = [*dict.fromkeys(m.domain for m in measured), ALL]
    rows = []
    for configuration in order:
        for domain in domains:
            here = [m for m in measured if domain in (m.domain, ALL)]
            mine = [m.answer for m in here if m.configuration == configuration]
            blocks = {m.block for m in here if m.configuration == configuration}
            plain = [m.answer for m in here if m.configuration == PLAIN and m.block in blocks]
            cost = decode_cost([[answer] for answer in mine])
            rows.append(
                {
                    **asdict(configuration),
                    "domain": domain,
                    "tau": tau(mine),
                    "tok_s": 1 / cost,
                    "speedup": decode_cost([[answer] for answer in plain]) / cost,
                    "rounds": sum(answer.rounds for answer in mine),
                }
            )
    return rows


def stage_shares(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, float]:
    """Each stage's share of the time spent in rounds between two readings of a server's round stats."""
    if not before or not after:
        return {}
    seconds = {stage: after["stage_seconds"][stage] - before["stage_seconds"][stage] for stage in STAGES}
    total = sum(seconds.values())
    return {stage: value / total for stage, value in seconds.items()} if total else {}


def tables(rows: list[dict[str, Any]], stages: list[dict[str, Any]]) -> Iterator[Table]:
    """τ and speed-up a domain; speed and stage shares a configuration."""
    domains = [*dict.fromkeys(row["domain"] for row in rows if row["domain"] != ALL), ALL]
    names = list(dict.fromkeys(_name(row) for row in rows))
    cells = {(_name(row), row["domain"]): row for row in rows}
    quality = Table(title="accept length τ and speed-up over plain decoding")
    quality.add_column("configuration")
    for domain in domains:
        quality.add_column(domain, justify="right")
    cost = Table(title="tokens a second, and where the time of a round goes")
    for heading in ("configuration", "tok/s", "rounds", *STAGES):
        cost.add_column(heading, justify="left" if heading == "configuration" else "right")
    for name in names:
        found = [cells.get((name, domain)) for domain in domains]
        quality.add_row(name, *(f"{row['tau']:.2f}  {row['speedup']:.2f}x" if row else "" for row in found))
        total, shares = cells[name, ALL], next((s for s in stages if _name(s) == name), {})
        percent = (f"{shares[stage]:.0%}" if stage in shares else "" for stage in STAGES)
        cost.add_row(name, f"{total['tok_s']:.1f}", str(total["rounds"]), *percent)
    yield quality
    yield cost


def _name(row: dict[str, Any]) -> str:
    return Configuration(**{key: row[key] for key in Configuration.__dataclass_fields__}).name
