"""A crew: the actors of one spawn, as their caller knows them; meshes are views of it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import partial
from typing import Any

from monarch.endpoint import EndpointInfo
from monarch.engine.calls import Gather, Outcome
from monarch.engine.child import Place
from monarch.engine.framing import Kind
from monarch.engine.hosted import Request
from monarch.engine.link import Link
from monarch.engine.pickling import Packed, dumps, loads
from monarch.engine.process import Death, Process
from monarch.engine.reactor import Reactor
from monarch.engine.reports import error_from
from monarch.errors import ActorDied, ActorError, ActorGone, ActorStopped, CallFailed
from monarch.future import Future
from monarch.shape import Point


class Crew:
    """Links to the actors by rank, their endpoints, and the errors of their ends."""

    def __init__(
        self, reactor: Reactor, name: str, points: Mapping[int, Point], processes: Mapping[int, Process]
    ) -> None:
        self.reactor, self.name, self.points = reactor, name, points
        self.table: dict[str, EndpointInfo] = {}
        self.stopped = False
        self.links: dict[int, Link] = {}
        for rank, process in processes.items():
            self.links[rank] = link = process.open_link()
            process.at_end(partial(self._lose, link, rank))

    def create(self, places: Mapping[int, Place], actor: type | str, args: Any, kwargs: Any, endpoints: Any) -> None:
        """Have every rank construct its actor; `created` is settled when all have, or one has failed."""
        gather = Gather(tuple(self.links))
        self.created: Future[None] = Future(self.reactor, partial(self._created, gather), f"{self.name}'s constructor")

        def settle(rank: int, outcome: Outcome) -> None:
            if gather.put(rank, outcome):
                self.created.settle()

        request = dumps(Request(actor, args, kwargs, endpoints), f"the arguments of {self.name}")
        for rank, link in self.links.items():
            message = Packed(request.body, [*request.buffers, pickle.dumps(places[rank])])
            link.post(Kind.CREATE, message, "", partial(settle, rank))

    def _created(self, gather: Gather) -> None:
        for table in self.results(gather, f"the constructor of {self.name}").values():
            self.table = table

    def results(self, gather: Gather, what: str, endpoint: str = "") -> dict[int, Any]:
        """The values of a call that is whole; raises the one error of one rank, or CallFailed."""
        results: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        for rank, outcome in gather.outcomes.items():
            try:
                results[rank] = self.value_of(outcome, rank, endpoint)
            except Exception as error:
                errors[rank] = error
        if not errors:
            return results
        first = next(iter(errors.values()))
        if len(gather.ranks) == 1:
            raise first
        failed = CallFailed(
            f"{what} failed on {len(errors)} of {len(gather.ranks)} ranks; first: {first}", [*errors.values()]
        )
        failed.results, failed.errors, failed.pending = results, errors, gather.pending
        raise failed

    def value_of(self, outcome: Outcome, rank: int, endpoint: str) -> Any:
        """The value in an answer; raises the error in it."""
        if isinstance(outcome, Exception):
            raise outcome
        if outcome.kind == Kind.ERROR:
            report = pickle.loads(outcome.body)
            raise error_from(report, actor=self.name, rank=self.points[rank], endpoint=endpoint)
        return loads(outcome.body, outcome.buffers) if outcome.body else None

    def stop(self) -> Future[None]:
        """End the actors and leave their processes."""
        self.stopped = True
        for rank, link in self.links.items():
            link.lose(partial(self._error, rank, None))
        return Future.of(lambda: None, "stop")

    def _lose(self, link: Link, rank: int, death: Death) -> None:
        link.lose(partial(self._error, rank, death))

    def _error(self, rank: int, death: Death | None, endpoint: str, under_way: bool) -> ActorError:
        facts: dict[str, Any] = {"actor": self.name, "rank": self.points[rank], "endpoint": endpoint or None}
        who = f"{self.name} on {dict(self.points[rank])}"
        call = f"{self.name}.{endpoint}" if endpoint else "its construction"
        if self.stopped or death is None:
            state = "was under way and may have run" if under_way else "did not run"
            return ActorStopped(f"{who} was stopped; {call} {state}", **facts)
        kind = ActorDied if under_way else ActorGone
        state = "while %s was under way; it may have run" if under_way else "before %s, which did not run"
        last = "".join(f"\n  {line}" for line in death.last_output)
        error = kind(f"{who} {death} {state % call}" + (f". Its last output:{last}" if last else ""), **facts)
        error.exit_code, error.signal, error.last_output = death.exit_code, death.signal, death.last_output
        return error
