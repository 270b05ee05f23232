"""What one run does: server, load, workload. One model, from which the command's and Locust's options are made."""

from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

Api = Literal["generate", "chat", "program"]
Arrivals = Literal["poisson", "constant", "bursts", "ramp", "trace", "closed"]


MOST_ARRIVALS = 10_000_000  # of a run; its schedule is made before it


class LoadConfig(BaseModel):
    """One run. Rates are requests a second (conversations, where they have several turns); times are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    url: str = Field("http://127.0.0.1:30000", description="the server under test")
    api: Api = Field(
        "generate", description="/generate, OpenAI chat completions, or an SGLang frontend program"
    )
    model: str = Field("default", description="model name in chat requests")
    method: str = Field("server", description="what the server is, for the records")
    cell: str = Field("run", description="name of this run, for the records")
    server_flags: str = Field("", description="how the server was started, for the records")

    arrivals: Arrivals = Field("poisson", description="when requests start; closed: a fixed number in flight")
    rate: PositiveFloat = Field(1.0, description="mean requests a second; of a ramp, at its start")
    rate_to: PositiveFloat | None = Field(None, description="requests a second at a ramp's end")
    burst: PositiveInt = Field(8, description="requests that start together, with --arrivals bursts")
    trace: Path | None = Field(None, description="file of start times in seconds, one a line")
    concurrency: PositiveInt = Field(1, description="requests in flight, with --arrivals closed")
    warmup_s: float = Field(5.0, ge=0, description="seconds of the same load before the measured window")
    duration_s: PositiveFloat = Field(60.0, description="seconds of the measured window")
    timeout_s: PositiveFloat = Field(120.0, description="a request that takes longer has failed")

    workload: str = Field(
        "builtin",
        description="builtin, builtin:DOMAIN,…, FILE.jsonl, FILE.json (ShareGPT), or hf:OWNER/NAME:SPLIT:COLUMN",
    )
    max_turns: PositiveInt = Field(
        1, description="turns of a conversation to play, each after the last answer"
    )
    shared_prefix: int = Field(0, ge=0, description="words of one text before all prompts, shared by all")
    template: Literal["none", "chatml"] = Field("none", description="chat format, for generate and program")
    max_tokens: PositiveInt = Field(128, description="most tokens of an answer")
    ignore_eos: bool = Field(False, description="answers of exactly max_tokens")
    temperature: float = Field(0.0, ge=0, description="0: greedy")
    seed: int = Field(0, description="of arrivals and of the order of prompts")
    flush: bool = Field(True, description="empty the server's prefix cache before the run")

    slo_ttft_s: PositiveFloat | None = Field(None, description="bound on time to first token, for goodput")
    slo_tpot_s: PositiveFloat | None = Field(None, description="bound on time per output token, for goodput")
    slo_e2e_s: PositiveFloat | None = Field(None, description="bound on the whole answer, for goodput")

    @field_validator("url")
    @classmethod
    def _base(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url is {url!r}; give one like http://127.0.0.1:30000")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _fits_together(self) -> "LoadConfig":
        if (self.arrivals == "ramp") != (self.rate_to is not None):
            raise ValueError("rate_to goes with arrivals ramp; give both or neither")
        if (self.arrivals == "trace") != (self.trace is not None):
            raise ValueError("trace, a file of start times, goes with arrivals trace; give both or neither")
        if self.template != "none" and self.api == "chat":
            raise ValueError("template is not for api chat, where the server applies its own; leave it out")
        if max(self.rate, self.rate_to or 0) * self.end_s > MOST_ARRIVALS:
            raise ValueError(f"that is more than {MOST_ARRIVALS} requests; lower rate or duration_s")
        return self

    @property
    def open_loop(self) -> bool:
        return self.arrivals != "closed"

    @property
    def end_s(self) -> float:
        """When the last request may start."""
        return self.warmup_s + self.duration_s

    def arguments(self) -> list[str]:
        """Locust's command line for this run; booleans as `true` and `false`."""
        words = []
        for name, value in self.model_dump(mode="json", exclude_none=True).items():
            flag = "--host" if name == "url" else option(name)
            words += [flag, str(value).lower() if isinstance(value, bool) else str(value)]
        return words

    @classmethod
    def of_options(cls, options: dict[str, Any]) -> "LoadConfig":
        """From Locust's parsed options, where all values are text and "" is no value.

        Raises:
            pydantic.ValidationError: a value that can't be, or values that don't go together.
        """
        given = {name: options[name] for name in cls.model_fields if options.get(name) not in (None, "")}
        return cls(**given)


def option(name: str) -> str:
    """`"max_tokens"` → `"--max-tokens"`."""
    return "--" + name.replace("_", "-")
