// The program itself, as an operator starts and stops it.
#include <cstdlib>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "blockd/engine/backend_registry.h"
#include "tests/integration/process/program_fixture.h"

namespace blockd::test {
namespace {

TEST_F(ProgramTest, HelpNamesEveryLimitAndVersionIsOneLine) {
  Spawn({"--help"});
  EXPECT_EQ(Wait(), 0);
  const std::string help = Output();
  Spawn({"-h"});
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Output(), help);
  for (const server::OptionValue& limit : server::Limits(server::ServerOptions())) {
    if (absl::FindCommandLineFlag(limit.name) == nullptr) continue;  // a constant
    EXPECT_NE(help.find("--" + limit.name), std::string::npos) << limit.name;
  }
  Spawn({"--version"});
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Output(), "blockd " + server::Version() + "\n");
}

TEST_F(ProgramTest, WrongFlagsAreRefusedAtStart) {
  const struct {
    std::vector<std::string> flags;
    int code;  // 2: a value out of range; 1: a flag's text that cannot be read, or the machine
    std::string message;
  } cases[] = {
      {{"--port=70000"}, 2, "blockd: --port=70000: expected a number from 0 to 65535\n"},
      {{"--port=http"}, 1, "port"},
      {{"--address=unix:/run/s"}, 2, "--unix_socket=PATH is for a Unix socket"},
      {{"--unix_socket_mode=0777"}, 2, "--unix_socket_mode=0777: expected three or four octal"},
      {{"--device_memory=lots"}, 1, "expected a number of bytes"},
      {{"--max_lease=yesterday"}, 1, "max_lease"},
      {{"--stream_idle_timeout=0"}, 2, "--stream_idle_timeout=0: expected a time from"},
      {{"--backend=fpga"}, 2, "expected one of auto, cuda, rocm, cpu"},
      {{"--no_such_flag=1"}, 1, "no_such_flag"},
      {{"--retry_delay=1s"}, 2, "blockd: --retry_delay is no flag any more: retry_delay is always"},
      {{"surplus"}, 2, "surplus: expected flags only"},
      {{"--tls_cert_file=/nonexistent.pem"}, 2, "--tls_key_file"},
      {{"--tls_cert_file=/nonexistent.pem", "--tls_key_file=/nonexistent.key"},
       2,
       "--tls_cert_file=/nonexistent.pem: expected a file that can be read"},
      {{"--backend=cpu", "--device_memory=1024TiB"}, 1, "--device_memory=1125899906842624: "},
      {{"--device_memory=64MiB", "--port_file=/nonexistent/ports"},
       2,
       "--port_file=/nonexistent/ports: expected a path that can be written"},
  };
  for (const auto& [flags, code, message] : cases) {
    std::vector<std::string> all = {"--port=0", "--metrics_port=-1"};
    all.insert(all.end(), flags.begin(), flags.end());
    Spawn(all);
    EXPECT_EQ(Wait(), code) << flags.back();
    EXPECT_NE(Output().find(message), std::string::npos) << flags.back() << ": " << Output();
  }
}

TEST_F(ProgramTest, ThePortFileSaysBothPortsWhenTheServerServes) {
  Serve({"--address=127.0.0.1"});
  EXPECT_EQ(ReadFile(folder_ / "ports"), "grpc=" + port_ + "\nmetrics=-1\n");
  EXPECT_FALSE(fs::exists(folder_ / "ports.new"));
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(ProgramTest, AUnixSocketIsServedUntilTheEnd) {
  const std::string path = folder_ / "socket", target = "unix:" + path;
  for (const int signal : {SIGKILL, SIGTERM}) {  // the second server finds what the first one left
    Serve({"--port=-1", "--unix_socket=" + path, "--unix_socket_mode=0606", "--backend=cpu"});
    EXPECT_EQ(port_, "-1");
    EXPECT_EQ(fs::status(path).permissions(), fs::perms(0606));
    const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
    const auto stub = v1::Solver::NewStub(channel);
    grpc::ClientContext context;
    context.AddMetadata("blockd-caller", "ada");  // who reaches the file may name itself
    v1::ServerInfo info;
    ASSERT_TRUE(IsOk(stub->GetServerInfo(&context, {}, &info)));
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(Output(), "caller=metadata:ada"); }));
    EXPECT_TRUE(Eventually([&] {  // that the ports are known is said before
      return absl::StrContains(Output(), " grpc=off unix_socket=" + path + " ");
    })) << Output();
    kill(pid_, signal);
    EXPECT_EQ(Wait(), signal == SIGKILL ? -SIGKILL : 0) << Output();
    EXPECT_EQ(fs::exists(path), signal == SIGKILL);
    fs::remove(folder_ / "ports");
  }
  Spawn({"--port=0", "--unix_socket=" + std::string(108, 's')});
  EXPECT_EQ(Wait(), 2);
  EXPECT_TRUE(absl::StrContains(Output(), ": expected a path of at most 107 bytes")) << Output();
}

TEST_F(ProgramTest, AUnixSocketThatIsServedIsLeftToItsServer) {
  const std::string path = folder_ / "socket";
  Serve({"--unix_socket=" + path, "--backend=cpu"});
  const pid_t first = std::exchange(pid_, -1);
  Spawn({"--port=0", "--metrics_port=-1", "--device_memory=64MiB", "--backend=cpu",
         "--unix_socket=" + path});
  EXPECT_EQ(Wait(), 1);
  EXPECT_TRUE(absl::StrContains(
      Output(), "cannot serve gRPC on " + path + ": Address already in use (--unix_socket)"))
      << Output();
  pid_ = first;
  EXPECT_TRUE(fs::exists(path));
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(ProgramTest, ATermSignalDrainsAndExitsWithZero) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto channel = Serve({"--log_format=json", "--backend=cpu", "--server_name=solver-7"});
    const auto stub = v1::Solver::NewStub(channel);
    v1::ServerInfo info;
    ASSERT_TRUE(IsOk(stub->GetServerInfo(NewContext().get(), {}, &info)));
    kill(pid_, signal);
    EXPECT_EQ(Wait(), 0) << Output();
    const std::string name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
    for (const std::string& text :
         {"\"event\":\"serving\",\"version\":\"" + server::Version() +
              "\",\"name\":\"solver-7\",\"grpc\":\"127.0.0.1:" + port_ +
              "\",\"unix_socket\":\"off\",\"shared_memory\":\"off\",\"metrics\":\"off\",\"tls\":"
              "\"off\",\"health\":\"off\"}",
          std::string("\"method\":\"GetServerInfo\",\"caller\":\"anonymous\",\"status\":\"OK\""),
          "\"event\":\"signal\",\"name\":\"" + name + "\"", std::string("\"event\":\"draining\""),
          std::string("\"event\":\"stopped\",\"cancelled_work\":\"no\"")}) {
      EXPECT_NE(Output().find(text), std::string::npos) << text << " in " << Output();
    }
    fs::remove(folder_ / "ports");
  }
}

TEST_F(ProgramTest, OneLineSaysWhatComputesAndWhy) {
  const std::vector<std::string> built = BuiltBackends();
  const auto taken = CreateBackend("auto", {.memory_bytes = 64 << 20});
  ASSERT_TRUE(taken.ok()) << taken.status();
  const std::string found = (*taken)->device().backend;
  const std::string first = built.size() == 1
                                ? "\"--backend=auto: this build has no other\"\n"
                                : "\"--backend=auto: the first of " + absl::StrJoin(built, ", ");
  const struct {
    std::string flag, level, backend, why;
  } cases[] = {
      {"--backend=cpu", "info", "cpu", "\"--backend=cpu\"\n"},
      // Where the build has a backend for a GPU and the machine has none, the line says what is
      // missing.
      {"--backend=auto", found == built.front() ? "info" : "warn", found,
       found == built.front() ? first : "\"--backend=auto: no " + built.front() + " device: "},
  };
  for (const auto& [flag, level, backend, why] : cases) {
    Serve({flag});
    kill(pid_, SIGTERM);
    EXPECT_EQ(Wait(), 0);
    fs::remove(folder_ / "ports");
    const std::vector<std::string> lines = absl::StrSplit(Output(), " event=device ");
    ASSERT_EQ(lines.size(), 2) << Output();
    const auto is = [&](const std::string& text) { return absl::StrContains(lines[1], text); };
    EXPECT_TRUE(absl::EndsWith(lines[0], " level=" + level)) << Output();
    EXPECT_TRUE(is("backend=" + backend + " device=")) << lines[1];
    EXPECT_TRUE(is(" pool_bytes=67108864 why=" + why)) << lines[1];
  }
}

TEST_F(ProgramTest, ASecondSignalEndsAtOnce) {
  const auto channel = Serve({"--drain_timeout=10m"});
  const auto stub = v1::Solver::NewStub(channel);
  // An upload that never ends keeps the drain waiting.
  const HostMatrix matrix(problems::Poisson(9, 9), Scalar::kFloat64);
  v1::FactorStreamRequest header;
  *header.mutable_header()->mutable_spec() = SpecOf(matrix);
  header.mutable_header()->set_num_systems(1);
  grpc::ClientContext context;
  v1::FactorReply reply;
  const auto writer = stub->FactorStream(&context, &reply);
  ASSERT_TRUE(writer->Write(header));
  v1::ServerInfo info;
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(IsOk(stub->GetServerInfo(NewContext().get(), {}, &info)));
    return info.memory_free_bytes() < info.memory_bytes();
  }));
  kill(pid_, SIGTERM);
  ASSERT_TRUE(Eventually([&] { return Output().find("draining") != std::string::npos; }));
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), -SIGTERM);
  EXPECT_FALSE(writer->Finish().ok());
}

TEST_F(ProgramTest, AHandleOfTheProcessBeforeSaysRestarted) {
  const HostMatrix matrix(problems::Poisson(9, 9), Scalar::kFloat64);
  v1::FactorReply reply;
  {
    const auto stub = v1::Solver::NewStub(Serve({"--server_name=solver-7"}));
    ASSERT_TRUE(IsOk(stub->Factor(NewContext().get(), FactorRequestOf(matrix), &reply)));
    kill(pid_, SIGTERM);
    EXPECT_EQ(Wait(), 0);
    fs::remove(folder_ / "ports");
  }
  const auto stub = v1::Solver::NewStub(Serve({"--server_name=solver-7"}));
  v1::GetFactorizationRequest request;
  request.set_handle(reply.system(0).handle());
  v1::FactorizationInfo info;
  EXPECT_TRUE(IsNotFound(stub->GetFactorization(NewContext().get(), request, &info),
                         v1::HandleNotFound::RESTARTED));
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(ProgramTest, ATakenPortIsSaid) {
  const auto channel = Serve({});
  const pid_t first = pid_;
  const struct {
    std::string flag, message;
  } cases[] = {{"--port=", "cannot serve gRPC on 127.0.0.1:"},
               {"--metrics_port=", "cannot serve metrics on 127.0.0.1:"}};
  for (const auto& [flag, message] : cases) {
    Spawn({"--port=0", "--metrics_port=-1", "--device_memory=64MiB", flag + port_});
    EXPECT_EQ(Wait(), 1);
    EXPECT_NE(Output().find(message + port_), std::string::npos) << Output();
  }
  pid_ = first;
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(ProgramTest, WithTlsHandlesBelongToTheCertificate) {
  const std::string script = absl::StrCat(
      "(cd ", folder_.string(),
      " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
      " -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout server.key -out server.pem"
      " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
      " -subj /CN=alice -addext subjectAltName=DNS:alice -keyout alice.key -out alice.pem"
      " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
      " -subj /CN=bob -addext subjectAltName=DNS:bob -keyout bob.key -out bob.pem"
      " && cat alice.pem bob.pem > ca.pem)");
  ASSERT_EQ(std::system((script + " > /dev/null 2>&1").c_str()), 0);
  const std::string at = folder_.string() + "/";
  Serve({"--tls_cert_file=" + at + "server.pem", "--tls_key_file=" + at + "server.key",
         "--tls_client_ca_file=" + at + "ca.pem"});
  const auto connect = [&](const std::string& name) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadFile(folder_ / "server.pem");
    if (!name.empty()) {
      options.pem_cert_chain = ReadFile(folder_ / (name + ".pem"));
      options.pem_private_key = ReadFile(folder_ / (name + ".key"));
    }
    // By address, so that no resolver is asked.
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    return v1::Solver::NewStub(
        grpc::CreateCustomChannel("127.0.0.1:" + port_, grpc::SslCredentials(options), arguments));
  };
  const auto alice = connect("alice"), bob = connect("bob"), nobody = connect("");
  const HostMatrix matrix(problems::Poisson(4, 4), Scalar::kFloat64);
  v1::FactorReply reply;
  ASSERT_TRUE(IsOk(alice->Factor(NewContext().get(), FactorRequestOf(matrix), &reply)));
  v1::GetFactorizationRequest request;
  request.set_handle(reply.system(0).handle());
  v1::FactorizationInfo info;
  EXPECT_TRUE(IsOk(alice->GetFactorization(NewContext("bob").get(), request, &info)));
  // The name in the metadata does not count where there is a certificate.
  EXPECT_TRUE(IsNotFound(bob->GetFactorization(NewContext("alice").get(), request, &info),
                         v1::HandleNotFound::NEVER_EXISTED));
  EXPECT_EQ(nobody->GetFactorization(NewContext().get(), request, &info).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
}

}  // namespace
}  // namespace blockd::test
