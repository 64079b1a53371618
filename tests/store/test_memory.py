"""The memory store keeps every store's promises."""

from forebay.store.base import Store
from forebay.store.memory import MemoryStore
from tests.store.conformance import StoreConformance, StoreMachine


class TestMemory(StoreConformance):
    def make(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store


class MemoryMachine(StoreMachine):
    def make(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store


TestMemoryMachine = MemoryMachine.TestCase
