#include "tests/support/certificates.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

namespace blockd::test {
namespace {

constexpr char kNewKey[] = " -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";

std::string Hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

// Tag, length, value: DER.
std::string Tlv(unsigned char tag, const std::string& value) {
  std::string out(1, static_cast<char>(tag));
  const size_t size = value.size();
  if (size >= 256) {
    out += {'\x82', static_cast<char>(size >> 8)};
  } else if (size >= 128) {
    out += '\x81';
  }
  out += static_cast<char>(size & 255);
  return out + value;
}

}  // namespace

void Certificates::MakeAuthority(const std::string& name) {
  Run(std::string("openssl req -x509") + kNewKey + "-days 2 -subj /CN=" + name + " -keyout " +
      Path(name + ".key") + " -out " + Path(name + ".pem"));
}

void Certificates::Make(const std::string& name, const std::string& common_name,
                        const std::vector<SubjectName>& names, const std::string& authority,
                        int days) {
  std::string all;
  for (const SubjectName& one : names) all += Tlv(one.tag, one.value);
  std::ofstream(Path("extensions"))
      << "basicConstraints=CA:FALSE\n"
      << (names.empty() ? "" : "subjectAltName=DER:" + Hex(Tlv(0x30, all)) + "\n");
  const std::string subject = common_name.empty() ? "/" : "/CN=" + common_name;
  Run(std::string("openssl req -new") + kNewKey + "-subj '" + subject + "' -keyout " +
      Path(name + ".key") + " | openssl x509 -req -days " + std::to_string(days) + " -CA " +
      Path(authority + ".pem") + " -CAkey " + Path(authority + ".key") +
      " -CAcreateserial -extfile " + Path("extensions") + " -out " + Path(name + ".pem"));
}

std::string Certificates::Text(const std::string& file) const {
  std::ostringstream text;
  text << std::ifstream(Path(file)).rdbuf();
  return text.str();
}

void Certificates::Replace(const std::string& file, const std::string& with) const {
  std::filesystem::copy_file(Path(with), Path(file + ".new"),
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::rename(Path(file + ".new"), Path(file));
}

void Certificates::Run(const std::string& command) const {
  const std::string log = Path("openssl.log");
  if (std::system(("{ " + command + "; } 2>" + log).c_str()) == 0) return;
  std::cerr << command << "\n" << Text("openssl.log");
  std::abort();  // without certificates no test can run
}

}  // namespace blockd::test
