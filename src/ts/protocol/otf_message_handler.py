"""`ts.protocol.otf_message_handler`: the former home of streaming."""

from relight.sdk.streaming import deprecated_send_intermediate_predict_response as send_intermediate_predict_response

__all__ = ["send_intermediate_predict_response"]
