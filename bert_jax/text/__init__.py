"""Reads text: files, tables, documents, sentences, the embedded documentation; finds duplicates."""
