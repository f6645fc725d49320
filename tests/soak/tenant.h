// One caller of a tenant: asks for one thing after another, and checks every answer.
#ifndef BLOCKD_TESTS_SOAK_TENANT_H_
#define BLOCKD_TESTS_SOAK_TENANT_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "blockd/v1/blockd.grpc.pb.h"
#include "tests/soak/systems.h"
#include "tests/soak/tally.h"

namespace blockd::soak {

// How a tenant shows who it is, and what the tenants file says of it.
struct Tenant {
  std::string name;
  std::string token;  // else it says its name
  std::string file;   // its entry's fields beside name and identity
};
const std::vector<Tenant>& Tenants();
std::string TenantsFile();
void SayWho(const Tenant& tenant, grpc::ClientContext* context);

// Thread-compatible.
class Caller {
 public:
  Caller(const Tenant& tenant, int port, uint64_t seed, Tally* tally);

  // So many requests, of all kinds, and maybe a few more.
  void Run(int64_t requests);
  // Factors until the pool was full once. Its memory is the system's until somebody writes there,
  // so a server whose pool was never full would seem to grow.
  void FillPool();
  // Gives back all that it holds.
  void ReleaseAll();
  // A handle of its own that others are not to have; empty if there is none.
  std::string any_handle() const { return held_.empty() ? "" : held_.front().handle; }
  void set_foreign_handle(std::string handle) { foreign_ = std::move(handle); }

 private:
  struct Held {
    std::string handle;
    const System* system = nullptr;
    bool matrix_kept = false;
  };
  using Code = grpc::StatusCode;

  void Step();
  // Each of these counts what it asks.
  void Solve();
  void SolveInTime();
  void SolveCancelled();
  void SolveWithResidual();
  void SolveWrongly();
  void SolveForeign();
  void Factor();
  void FactorKeyed();
  void FactorNotPositiveDefinite();
  void Refactor();
  void FactorSolve();
  void Upload();
  void UploadBroken();
  void Stream();
  void Release();
  void Ask();

  grpc::ClientContext* NewContext();
  bool Chance(double part) { return std::uniform_real_distribution<double>(0, 1)(random_) < part; }
  size_t Below(size_t end) { return random_() % end; }
  // Any one of those held; factors one first where there is none. Null if that was refused.
  Held* Any();
  void Forget(const Held* held);
  // After a refusal: who is over a rate asks a little later. Forgets a handle that is gone.
  void Note(const grpc::Status& status, const Held* held);
  v1::SolveRequest RequestOf(const Held& held, int64_t columns) const;
  v1::FactorRequest FactorOf(const System& system, bool keep_matrix) const;
  void Keep(const v1::FactorReply& reply, const System& system, bool keep_matrix);
  void Count(const std::string& what, const grpc::Status& status,
             std::initializer_list<Code> allowed, const std::string& wrong = "");

  const Tenant& tenant_;
  Tally* const tally_;
  std::mt19937_64 random_;
  std::unique_ptr<v1::Solver::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::vector<Held> held_;
  std::string foreign_;
  int64_t asked_ = 0, keys_ = 0;
};

}  // namespace blockd::soak

#endif  // BLOCKD_TESTS_SOAK_TENANT_H_
