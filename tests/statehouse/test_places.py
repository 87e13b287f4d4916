"""What the engines are told of an object store."""

from __future__ import annotations

from statehouse.places import duckdb_secret, prepare, remote, scheme, spark_settings

OWN = {"AWS_ENDPOINT_URL": "http://127.0.0.1:7070", "AWS_REGION": "eu-west-1"}


def test_a_folder_needs_nothing():
    assert not remote("/data/lake") and scheme("/data/lake") == ""
    assert spark_settings("/data/lake", "delta", OWN) == {}
    environ = dict(OWN)
    prepare("/data/lake", environ)
    assert environ == OWN


def test_amazons_own_needs_the_connector_only():
    assert remote("s3a://bucket/lake") and scheme("s3a://bucket/lake") == "s3a"
    found = spark_settings("s3a://bucket/lake", "delta", {})
    connector = "delta,org.apache.hadoop:hadoop-aws:3.4.1"
    assert found == {"spark.jars.packages": connector, "spark.hadoop.delta.enableFastS3AListFrom": "true"}
    assert duckdb_secret({}) == "CREATE SECRET (TYPE s3, PROVIDER credential_chain)"


def test_each_engine_is_told_of_another_endpoint_in_its_own_way():
    found = spark_settings("s3a://bucket/lake", "", OWN)
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:7070"
    assert found["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    secret = duckdb_secret(OWN)
    assert "ENDPOINT '127.0.0.1:7070'" in secret and "USE_SSL False" in secret and "REGION 'eu-west-1'" in secret
    environ = dict(OWN)
    prepare("s3a://bucket/lake", environ)
    assert environ["AWS_ALLOW_HTTP"] == "true"
