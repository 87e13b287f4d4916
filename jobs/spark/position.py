"""How far a job is: the ``txn`` of a table, moved by the commit that writes the rows, or by one without rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from jobs.spark import databricks
from statehouse.errors import LakeBusy
from statehouse.tables import metadata, opened

NOTHING = pa.schema([("nothing", pa.string())])


class Position:
    """The ``txn`` of an application id in a table, which need not be there yet."""

    def __init__(self, path: str, application: str) -> None:
        self.path, self._application = path, application

    def get(self) -> int | None:
        """The number that was moved to last; None where it was never moved."""
        delta = opened(self.path)
        return delta.transaction_version(self._application) if delta else None

    def read_note(self) -> dict[str, Any]:
        """The note of the commit that moved the position last; empty where there is none."""
        return (metadata(self.path, self._application) or {}).get(self._application, {})

    def append(self, rows: DataFrame, number: int, note: Mapping[str, Any]) -> None:
        """Append rows and move the position to a number, with a note (plain JSON), in one commit; columns that the table lacks are
        added. Raises LakeBusy where another process has moved it meanwhile, and what Delta raises where the columns do not fit."""
        done = {"txnAppId": self._application, "txnVersion": str(number), "userMetadata": self._text(note)}
        rows.write.format("delta").mode("append").option("mergeSchema", True).options(**done).save(self.path)
        if self.get() != number or self.read_note() != note:  # a number that is there already is passed over in silence
            raise LakeBusy(f"{self.path}: {self._application} was moved by another process meanwhile; one at a time")

    def move(self, number: int, note: Mapping[str, Any]) -> None:
        """Move the position, of a table without rows, which is made where it is not there."""
        if databricks.in_volume(self.path):  # deltalake cannot commit there
            self.append(databricks.session().createDataFrame([], "nothing STRING"), number, note)
            return
        # Not by Spark, for which this takes a second.
        if opened(self.path) is None:
            DeltaTable.create(self.path, NOTHING, mode="ignore", configuration={"delta.checkpointInterval": "100"})
        done = CommitProperties(
            app_transactions=[Transaction(self._application, number)],
            custom_metadata={"userMetadata": self._text(note)},
        )
        write_deltalake(self.path, NOTHING.empty_table(), mode="append", commit_properties=done)

    def _text(self, note: Mapping[str, Any]) -> str:
        return json.dumps({self._application: note})
