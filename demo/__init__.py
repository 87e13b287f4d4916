"""An embedded Kafka and simulated agents and tills, so that all of statehouse runs from one command."""
