"""The headers of Kafka's records that say what an event does, or where a message comes from."""

OP_HEADER = "statehouse-op"
STORE_HEADER = "statehouse-store"
ORDER_HEADER = "statehouse-order"  # of a set or a purge, its rank where the stream has an `order:`
REPORT = "report"  # what a record with a payload and without operation does
TOMBSTONE = "tombstone"  # what a record without a payload does where deletes have payloads of their own: nothing
TASK_OPERATIONS = ("task", "cancel")  # a task that is asked for, and the end of one
TASK_HEADER = "task-id"  # of what a task sends
# Of what a route sends: the event that a message was made of, and which of its messages it is.
SOURCE_HEADER = "statehouse-source"
PART_HEADER = "statehouse-part"
REVISION_HEADER = (
    "statehouse-revision"  # and how often what it says of the event was another, where late events are told of
)
POSITION_HEADER = "statehouse-position"  # of a published state: the changelog's version that it reflects
REQUEUED_HEADER = (
    "statehouse-requeued"  # of a refused record that was sent again: its partition and offset then, such as 0:17
)
