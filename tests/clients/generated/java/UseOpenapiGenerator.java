import java.util.List;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.ChatCompletionsApi;
import org.openapitools.client.api.MessagesApi;
import org.openapitools.client.api.ResponsesApi;
import org.openapitools.client.model.*;

/** A chat by the client that openapi-generator wrote for Java. */
public class UseOpenapiGenerator {
    public static void main(String[] args) throws Exception {
        String model = "gpt-oss-20b";
        String key = System.getenv("HARMONIUM_API_KEY");
        ApiClient client = new ApiClient();
        client.updateBaseUri(System.getenv("HARMONIUM_URL"));
        client.setRequestInterceptor(it -> it.header("Authorization", "Bearer " + key));

        UserMessage user = new UserMessage()
            .role(UserMessage.RoleEnum.USER)
            .content(new UserMessageContent("Hi"));
        ChatCompletion chat = new ChatCompletionsApi(client).createChatCompletion(
            new ChatRequest().model(model).messages(List.of(new ChatRequestMessagesInner(user))));
        System.out.println(chat.getChoices().get(0).getMessage().getContent());

        String noHeader = null; // OpenResponses-Version, which is optional
        ResponseObject response = new ResponsesApi(client).createResponse(
            new ResponseRequest().model(model).input(new ResponseRequestInput("Hi")), noHeader);
        OutputMessage answer = response.getOutput().get(response.getOutput().size() - 1).getOutputMessage();
        System.out.println(answer.getContent().get(0).getText());

        UserTurn turn = new UserTurn()
            .role(UserTurn.RoleEnum.USER)
            .content(new UserTurnContent("Hi"));
        Message message = new MessagesApi(client).createMessage(
            new MessagesRequest().model(model).maxTokens(99)
                .messages(List.of(new CountTokensRequestMessagesInner(turn))));
        System.out.println(message.getContent().get(message.getContent().size() - 1).getTextAnswer().getText());
    }
}
