"""What every measure uses: ``loop``, over batches, and ``store``, files written whole or not at all."""
