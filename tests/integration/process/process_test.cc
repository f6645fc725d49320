// blockd as a process: its signals, its log that nobody may read, its file descriptors.
#include <sys/socket.h>
#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "blockd/v1/admin.grpc.pb.h"
#include "server/base/descriptors.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/integration/process/program_fixture.h"

namespace blockd::test {
namespace {

class ProcessTest : public ProgramTest {
 protected:
  // Both standard streams of the program go into a pipe; this is the end to read.
  server::FileDescriptor PipeOutput() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    write_end_ = server::FileDescriptor(ends[1]);
    in_child_ = [this] {
      dup2(write_end_.get(), 1);
      dup2(write_end_.get(), 2);
    };
    return server::FileDescriptor(ends[0]);
  }
  // Without the time in which routers notice the end, and with metrics.
  std::shared_ptr<grpc::Channel> Start(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--drain_grace=0s", "--metrics_port=0", "--backend=cpu"});
    return Serve(flags);
  }
  void LimitDescriptors(rlim_t soft, rlim_t hard) {
    in_child_ = [soft, hard] {
      const rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
      setrlimit(RLIMIT_NOFILE, &limit);
    };
  }
  // The value of a metric without labels; -1 if the page does not have it.
  double Metric(const std::string& name) {
    const std::string page = HttpGet(metrics_port_, "/metrics");
    const size_t at = page.find("\n" + name + " ");
    double value = -1;
    if (at == std::string::npos) return value;
    EXPECT_TRUE(absl::SimpleAtod(
        page.substr(at + name.size() + 2, page.find('\n', at + 1) - at - name.size() - 2), &value));
    return value;
  }
  // That so many Solves are answered.
  void Solve(const std::shared_ptr<grpc::Channel>& channel, int count) {
    const auto stub = v1::Solver::NewStub(channel);
    const problems::Problem problem = problems::RandomSpd(2, 2, 1, 10);
    const HostMatrix matrix(problem, Scalar::kFloat64);
    v1::FactorReply factored;
    ASSERT_TRUE(IsOk(stub->Factor(NewContext().get(), FactorRequestOf(matrix), &factored)));
    v1::SolveRequest request;
    request.set_handle(factored.system(0).handle());
    request.set_num_rhs(1);
    request.set_rhs(BytesOf(problem.rhs));
    v1::SolveReply reply;
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(IsOk(stub->Solve(NewContext().get(), request, &reply))) << i;
    }
  }
  // The sum of what the log's whole lines say was dropped.
  static double DroppedAsSaid(const std::string& text) {
    double sum = 0;
    constexpr absl::string_view kSaid = " level=warn event=dropped lines=";
    for (size_t at = 0; (at = text.find(kSaid.data(), at)) != std::string::npos;) {
      at += kSaid.size();
      const size_t end = text.find('\n', at);
      double lines = 0;
      if (end == std::string::npos) break;
      EXPECT_TRUE(absl::SimpleAtod(text.substr(at, end - at), &lines));
      sum += lines;
    }
    return sum;
  }
  void Stop() {
    kill(pid_, SIGTERM);
    EXPECT_EQ(Wait(), 0);
  }

  server::FileDescriptor write_end_;
};

TEST_F(ProcessTest, ALogThatNobodyReadsHoldsUpNothing) {
  const server::FileDescriptor unread = PipeOutput();
  const auto channel = Start({"--log_requests_per_second=1000000", "--log_buffer_bytes=64KiB"});
  Solve(channel, 10000);
  EXPECT_GT(Metric("blockd_log_lines_dropped_total"), 5000);
  Stop();
}

TEST_F(ProcessTest, LinesThatWereDroppedAreCountedOnceTheLogIsReadAgain) {
  const server::FileDescriptor log = PipeOutput();
  const auto channel = Start({"--log_requests_per_second=1000000", "--log_buffer_bytes=64KiB"});
  Solve(channel, 1000);
  const double dropped = Metric("blockd_log_lines_dropped_total");
  EXPECT_GT(dropped, 0);
  write_end_.Reset(-1);
  // In one line or more: the last of the Solves may have been dropped after that look.
  std::string text;
  char buffer[4096];
  for (ssize_t got;
       DroppedAsSaid(text) < dropped && (got = read(log.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, got);
  }
  EXPECT_GE(DroppedAsSaid(text), dropped) << text.substr(text.size() - 1000);
  Stop();
  for (ssize_t got; (got = read(log.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, got);
  EXPECT_TRUE(absl::StrContains(text, "event=stopped cancelled_work=no\n"));
}

TEST_F(ProcessTest, OfManyRequestsSomeAreLoggedAndTheOthersCounted) {
  const auto channel = Start({"--log_requests_per_second=1"});
  Solve(channel, 500);
  EXPECT_GT(Metric("blockd_log_requests_not_logged_total"), 0);
  EXPECT_EQ(Metric("blockd_log_lines_dropped_total"), 0);
  ASSERT_TRUE(Eventually(
      [&] { return absl::StrContains(Output(), " level=info event=requests_not_logged count="); }));
  // A failure has a line all the same.
  v1::FactorizationInfo info;
  EXPECT_FALSE(v1::Solver::NewStub(channel)
                   ->GetFactorization(NewContext().get(), v1::GetFactorizationRequest(), &info)
                   .ok());
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Output(), " method=GetFactorization "); }));
  Stop();
}

TEST_F(ProcessTest, AHangupReloadsAndServesOn) {
  const std::string tenants = folder_ / "tenants";
  std::ofstream(tenants) << "tenant { name: \"t\" identity { metadata: \"bob\" } }";
  const auto channel = Start({"--tenants_file=" + tenants});
  for (int times = 1; times <= 2; ++times) {
    kill(pid_, SIGHUP);
    EXPECT_TRUE(Eventually([&] {
      const std::vector<std::string> parts =
          absl::StrSplit(Output(), " level=info event=reload tenants_file=read tls_files=none\n");
      return static_cast<int>(parts.size()) == times + 1;
    }));
  }
  // However many there are, and whatever it does meanwhile.
  for (int i = 0; i < 1000; ++i) {
    kill(pid_, SIGHUP);
    if (i % 10 == 0) usleep(100);
  }
  std::ofstream(tenants) << "nonsense";
  kill(pid_, SIGHUP);
  EXPECT_TRUE(Eventually([this] {
    return absl::StrContains(
        Output(), " level=error event=reload tenants_file=\"refused, the old ones are in force: ");
  })) << Output();
  EXPECT_EQ(Metric("blockd_tls_certificate_expiry_seconds"), -1);  // has none
  Solve(channel, 1);
  Stop();
}

// Nobody writes to it: to open it or to read from it would block for ever.
TEST_F(ProcessTest, AFileThatIsAPipeHoldsUpNoSignal) {
  const std::string tenants = folder_ / "tenants", pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::vector<std::string>& files :
       {std::vector<std::string>{"--tenants_file=" + pipe},
        {"--tls_cert_file=" + pipe, "--tls_key_file=" + pipe}}) {
    std::vector<std::string> flags = {"--port=0", "--metrics_port=-1", "--backend=cpu",
                                      "--device_memory=64MiB"};
    flags.insert(flags.end(), files.begin(), files.end());
    Spawn(flags);
    EXPECT_EQ(Wait(), 2) << Output();
    EXPECT_TRUE(absl::StrContains(Output(), "file that can be read")) << Output();
  }
  std::ofstream(tenants) << "tenant { name: \"t\" identity { metadata: \"bob\" } }";
  Start({"--tenants_file=" + tenants});
  fs::rename(pipe, tenants);
  kill(pid_, SIGHUP);
  EXPECT_TRUE(Eventually([this] {
    return absl::StrContains(Output(), "refused, the old ones are in force: ");
  })) << Output();
  Stop();
}

TEST_F(ProcessTest, ADrainThatACallAsksForEndsTheProgram) {
  const std::string tenants = folder_ / "tenants";
  std::ofstream(tenants) << "default_tenant { role: [USE, ADMIN] }";
  const auto channel = Start({"--tenants_file=" + tenants, "--drain_timeout=7s"});
  Solve(channel, 1);
  v1::DrainReply reply;
  EXPECT_TRUE(IsOk(v1::Admin::NewStub(channel)->Drain(NewContext().get(), {}, &reply)));
  EXPECT_EQ(reply.timeout().seconds(), 7);
  EXPECT_EQ(Wait(), 0);
  const std::string log = Output();
  const size_t draining = log.find(" event=draining\n"), audit = log.find(" event=audit "),
               stopped = log.find(" event=stopped cancelled_work=no\n");
  EXPECT_LT(draining, audit) << log;
  EXPECT_LT(audit, stopped) << log;
  EXPECT_NE(stopped, std::string::npos) << log;
}

TEST_F(ProcessTest, AfterMoreConnectionsThanDescriptorsItAcceptsAgain) {
  LimitDescriptors(64, 64);
  const auto channel = Start({});
  {
    std::vector<server::FileDescriptor> silent;
    for (int i = 0; i < 100; ++i) silent.emplace_back(ConnectTo(std::stoi(port_)));
    ASSERT_TRUE(Eventually([&] { return Metric("blockd_connections_refused_total") > 0; }));
    const double open = Metric("blockd_open_file_descriptors");
    EXPECT_GT(open, Metric("blockd_connections"));
    EXPECT_LT(open, 64);
    EXPECT_EQ(Metric("blockd_max_file_descriptors"), 64);
  }
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_connections") == 0; }));
  // Some of them may still wait to be accepted, and fill the places once more before they end.
  ASSERT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kGenerous)));
  Solve(channel, 1);
  EXPECT_TRUE(Eventually([&] { return Metric("blockd_connections") == 1; }));
  EXPECT_TRUE(absl::StrContains(Output(), " level=warn event=connections_refused count="));
  Stop();
}

TEST_F(ProcessTest, TooFewDescriptorsForAConnectionAreRefusedAtTheStart) {
  LimitDescriptors(20, 20);
  Spawn({"--port=0", "--metrics_port=-1", "--backend=cpu", "--device_memory=64MiB"});
  EXPECT_EQ(Wait(), 1);
  EXPECT_TRUE(
      absl::StrContains(Output(), "blockd: the process may have 20 file descriptors and has"))
      << Output();
}

TEST_F(ProcessTest, TheSoftLimitOfDescriptorsIsRaisedToTheHardOne) {
  LimitDescriptors(64, 500);
  Start({});
  EXPECT_EQ(Metric("blockd_max_file_descriptors"), 500);
  EXPECT_EQ(Metric("blockd_max_connections"), 500 - server::ReservedDescriptors(500));
  Stop();
}

TEST_F(ProcessTest, ClosedStandardStreamsAreNobodyElses) {
  in_child_ = [] {
    for (int fd = 0; fd <= 2; ++fd) close(fd);
  };
  const auto channel = Start({});
  for (int fd = 0; fd <= 2; ++fd) {
    EXPECT_EQ(fs::read_symlink(absl::StrCat("/proc/", pid_, "/fd/", fd)), "/dev/null");
  }
  Solve(channel, 10);
  Stop();
}

}  // namespace
}  // namespace blockd::test
