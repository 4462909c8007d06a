"""The app: the agents of one deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core.agent import Agent
from shared.core.errors import Misconfigured, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class App:
    """The agents of a deployment, in the order in which they were given."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        """Keep the agents.

        Raises:
            Misconfigured: two have the same id, or something is not an agent.
        """
        self._agents: dict[str, Agent] = {}
        for agent in agents:
            if not isinstance(agent, Agent):
                raise Misconfigured(f"an app holds agents, not a {type(agent).__name__}")
            if agent.id in self._agents:
                raise Misconfigured(f"two agents have the id {agent.id!r}")
            self._agents[agent.id] = agent

    def agent(self, id: str) -> Agent:
        """Return an agent.

        Raises:
            NotFound: there is none with this id.
        """
        found = self._agents.get(id)
        if found is None:
            raise NotFound(f"Agent with id {id} not found")
        return found

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    def __contains__(self, id: object) -> bool:
        return id in self._agents
