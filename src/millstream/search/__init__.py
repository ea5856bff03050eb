"""Stored queries: Lucene's query language, read, checked against the columns of documents, and matched."""
