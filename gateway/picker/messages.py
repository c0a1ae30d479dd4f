"""The messages of Envoy's external processing (`envoy.service.ext_proc.v3`), as far as an endpoint picker reads and writes them.

`FIELDS` lists each message with its fields and their numbers, which are the protocol: names matter to nobody but us. Whatever a proxy sends
beside them is skipped, as protobuf skips unknown fields. Enumerations are plain numbers. The package that has all of Envoy's messages
(`xds-protos`) is 120 MB, and writes old messages of OpenTelemetry over those that traces are sent with, so it cannot be installed beside
them (docs/explanation/decisions/0043). `make test-picker` compares this table with it.

Imported only where `picker` is set: protobuf comes with the extra of that name.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"

NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED = range(5)
"""How a proxy sends the body of a request or an answer (`ProcessingMode.BodySendMode`)."""
BODY_MODES: Final = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED")
OVERWRITE_OR_ADD: Final = 2
"""`HeaderValueOption.HeaderAppendAction`: the header takes this value, whatever was there."""
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
"""`HealthCheckResponse.ServingStatus`."""

FIELDS: Final = """
ProcessingRequest
  2 request_headers HttpHeaders | request
  3 response_headers HttpHeaders | request
  4 request_body HttpBody | request
  5 response_body HttpBody | request
  6 request_trailers HttpTrailers | request
  7 response_trailers HttpTrailers | request
  8 metadata_context Metadata
  11 protocol_config ProtocolConfiguration
HttpHeaders
  1 headers HeaderMap
  3 end_of_stream bool
HeaderMap
  1 headers HeaderValue *
HeaderValue
  1 key string
  2 value string
  3 raw_value bytes
HttpBody
  1 body bytes
  2 end_of_stream bool
HttpTrailers
  1 trailers HeaderMap
ProtocolConfiguration
  1 request_body_mode int32
  2 response_body_mode int32
Metadata
  1 filter_metadata FilterMetadataEntry *
FilterMetadataEntry
  1 key string
  2 value Struct
Struct
  1 fields FieldsEntry *
FieldsEntry
  1 key string
  2 value Value
Value
  3 string_value string | kind
  5 struct_value Struct | kind
  6 list_value ListValue | kind
ListValue
  1 values Value *
ProcessingResponse
  1 request_headers HeadersResponse | response
  2 response_headers HeadersResponse | response
  3 request_body BodyResponse | response
  4 response_body BodyResponse | response
  5 request_trailers TrailersResponse | response
  6 response_trailers TrailersResponse | response
  7 immediate_response ImmediateResponse | response
  8 dynamic_metadata Struct
HeadersResponse
  1 response CommonResponse
BodyResponse
  1 response CommonResponse
TrailersResponse
  1 header_mutation HeaderMutation
CommonResponse
  2 header_mutation HeaderMutation
  3 body_mutation BodyMutation
  5 clear_route_cache bool
HeaderMutation
  1 set_headers HeaderValueOption *
  2 remove_headers string *
HeaderValueOption
  1 header HeaderValue
  3 append_action int32
BodyMutation
  1 body bytes | mutation
  3 streamed_response StreamedBodyResponse | mutation
StreamedBodyResponse
  1 body bytes
  2 end_of_stream bool
ImmediateResponse
  1 status HttpStatus
  2 headers HeaderMutation
  3 body bytes
  5 details string
HttpStatus
  1 code int32
HealthCheckRequest
  1 service string
HealthCheckResponse
  1 status int32
"""
"""Each message with its fields: number, name, type; `*` where it is repeated, and behind `|` the group of which only one is set."""

_TYPES: Final = {"bool": 8, "string": 9, "bytes": 12, "int32": 5}
_MESSAGE: Final = 11


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tidegate_picker.proto", package="tidegate.picker", syntax="proto3")
    message: Any = None
    for line in FIELDS.splitlines():
        if not line:
            continue
        if not line.startswith(" "):
            message = file.message_type.add(name=line)
            groups: list[str] = []
            continue
        left, _, group = line.partition(" | ")
        number, name, kind, *repeated = left.split()
        field = message.field.add(name=name, number=int(number), label=3 if repeated else 1, type=_TYPES.get(kind, _MESSAGE))
        if field.type == _MESSAGE:
            field.type_name = f".tidegate.picker.{kind}"
        if group:
            if group not in groups:
                groups.append(group)
                message.oneof_decl.add(name=group)
            field.oneof_index = groups.index(group)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        entry.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tidegate.picker.{entry.name}"))
        for entry in file.message_type
    }


MESSAGES: Final = _message_classes()
ProcessingRequest: Final = MESSAGES["ProcessingRequest"]
ProcessingResponse: Final = MESSAGES["ProcessingResponse"]
HealthCheckRequest: Final = MESSAGES["HealthCheckRequest"]
HealthCheckResponse: Final = MESSAGES["HealthCheckResponse"]
