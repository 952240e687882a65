"""Text as it is read: files, tables, documents, sentences, duplicates."""
