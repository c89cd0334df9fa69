import psycopg, pytest, time
from awa_django.testing import reset_queue
@pytest.mark.parametrize("n", range(3))
def test_db(awa_database, n):
    with psycopg.connect(awa_database) as c:
        assert c.execute("select count(*) from awa.schema_version").fetchone() == (39,)
def test_oracle(oracle_database):
    with psycopg.connect(oracle_database) as c:
        assert c.execute("select count(*) from awa.schema_version").fetchone() == (39,)
@pytest.mark.django_db
def test_dj():
    from awa_django.models import SchemaVersion
    assert SchemaVersion.objects.count() == 39
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("n", range(3))
def test_tdj(n):
    from django.db import connection
    from awa_django.models import Job
    assert Job.objects.count()==0
    with connection.cursor() as c: c.execute("insert into awa.jobs (kind, args) values ('a','{}')")
    assert Job.objects.count()==1
