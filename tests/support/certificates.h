// Keys and certificates for tests of TLS, made with the program openssl.
//
// Names go into a certificate byte by byte, so that they may be what no honest authority would
// sign. One thread at a time.
#ifndef BLOCKD_TESTS_SUPPORT_CERTIFICATES_H_
#define BLOCKD_TESTS_SUPPORT_CERTIFICATES_H_

#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_folder.h"

namespace blockd::test {

// A subject alternative name: the tag of its kind and its bytes.
struct SubjectName {
  unsigned char tag;
  std::string value;
};
inline SubjectName Email(std::string value) { return {0x81, std::move(value)}; }
inline SubjectName Dns(std::string value) { return {0x82, std::move(value)}; }
inline SubjectName Uri(std::string value) { return {0x86, std::move(value)}; }

class Certificates {
 public:
  // NAME.pem and NAME.key, which signs itself.
  void MakeAuthority(const std::string& name);
  // NAME.pem and NAME.key, signed by that authority. `common_name` may be empty. -1 days: expired.
  void Make(const std::string& name, const std::string& common_name,
            const std::vector<SubjectName>& names, const std::string& authority = "ca",
            int days = 1);

  std::string Path(const std::string& file) const { return folder_ / file; }
  std::string Text(const std::string& file) const;
  // In one step, as who renews certificates does it.
  void Replace(const std::string& file, const std::string& with) const;

 private:
  void Run(const std::string& command) const;
  const TempFolder folder_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_CERTIFICATES_H_
