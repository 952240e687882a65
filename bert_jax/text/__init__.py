"""Reading text: files, tables, documents, sentences, the embedded documentation, duplicates."""
