"""The recipe of the bundled checkpoint `mini`: data, codec, codes, model, export, evaluation. See README.md."""
