"""Traces on disk: what each request did, round by round; token ids only with consent, never text.

FOLDER/requests/day=2026-03-01/app=shop/part-….parquet   a row for each answer (RequestTrace)
FOLDER/rounds/day=2026-03-01/app=shop/part-….parquet     a row for each round (RoundTrace)

A file gets its name when it is complete. Days are UTC. Small files are merged after a while: a file
`merged-….parquet` says in its metadata which ones it replaces, and those are deleted later.
"""
