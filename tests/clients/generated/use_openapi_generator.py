"""A chat by the client that openapi-generator wrote for Python: `openapi_client`."""

import os

from openapi_client import ApiClient, Configuration
from openapi_client.api import ChatCompletionsApi, MessagesApi, ResponsesApi
from openapi_client.models import ChatRequest, MessagesRequest, ResponseRequest

MODEL = "gpt-oss-20b"

configuration = Configuration(os.environ["HARMONIUM_URL"])
configuration.access_token = os.environ["HARMONIUM_API_KEY"]
client = ApiClient(configuration)

body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
chat = ChatCompletionsApi(client).create_chat_completion(ChatRequest.from_dict(body))
print(chat.choices[0].message.content)

response = ResponsesApi(client).create_response(
    ResponseRequest.from_dict({"model": MODEL, "input": "Hi"})
)
print(response.output[-1].actual_instance.content[0].text)

message = MessagesApi(client).create_message(MessagesRequest.from_dict(body | {"max_tokens": 99}))
print(message.content[-1].actual_instance.text)
