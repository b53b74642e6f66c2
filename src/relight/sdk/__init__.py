"""What a handler author imports: context, streaming, metrics, errors. Existing code reaches it through `ts`."""
