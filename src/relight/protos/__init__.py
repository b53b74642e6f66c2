"""The protocol buffers of the gRPC APIs, and the code generated from them (`make protos`).

The messages live in a descriptor pool of their own, so that a program may use relight's modules beside modules that it
has generated itself from TorchServe's files, or beside other clients of the Open Inference Protocol.
"""
