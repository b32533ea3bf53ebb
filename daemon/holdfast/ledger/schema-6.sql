-- What vendors' adapters keep of their hardware, each text as JSON that the adapter alone reads.
CREATE TABLE kept (
    topic TEXT NOT NULL,
    name  TEXT NOT NULL,
    text  TEXT NOT NULL,
    UNIQUE (topic, name)
) STRICT;

INSERT INTO kept (topic, name, text)
SELECT 'nvidia/health', uuid, json_object(
    'uuid', uuid, 'boot', boot, 'pci', pci, 'driver', driver, 'awaits', json(awaits),
    'marks', (
        SELECT json_group_array(json(mark)) FROM (
            SELECT json_object(
                'xid', xid,
                'gi', CASE gi WHEN -1 THEN NULL ELSE gi END,
                'ci', CASE ci WHEN -1 THEN NULL ELSE ci END,
                'suspected', json(CASE suspected WHEN 1 THEN 'true' ELSE 'false' END),
                'first', first, 'last', last, 'count', count
            ) AS mark
            FROM gpu_xids WHERE gpu_xids.uuid = gpus.uuid ORDER BY last
        )
    )
) FROM gpus ORDER BY uuid;

INSERT INTO kept (topic, name, text)
SELECT 'nvidia/idle', name, json_object('load', load, 'least', least, 'now', now)
FROM gpu_idle ORDER BY rowid;

DROP TABLE gpu_xids;
DROP TABLE gpus;
DROP TABLE gpu_idle;
