"""How relevance is shared: rules for operations, the functions behind them, what is explained, and the passes."""
