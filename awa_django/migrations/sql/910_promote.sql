-- A fresh installation uses queue storage from its first job. Left canonical, the first enqueue before the
-- first worker would keep it there until an operator moves it.
-- contract: schema, section 7; control-functions, section 6.7
SELECT awa.storage_auto_finalize_if_fresh('awa');
