"""The jobs of vidssl as functions, one module for each: `vidssl.train` is `vidssl.api.train.train`, and so on."""
